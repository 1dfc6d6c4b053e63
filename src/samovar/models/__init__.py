"""Model architectures: from a checkpoint to a list of operations that the native core replays."""

from samovar.models.load import LoadedProgram, load_program

__all__ = ["LoadedProgram", "load_program"]
