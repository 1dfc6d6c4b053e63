#!/bin/sh
# Proves that no code compiled for an instruction set can be linked in for everyone: each ISA file, compiled
# such that nothing is inlined that need not be, may define no weak symbol and no symbol of others.  (Without any
# optimization the nested loops of constants take minutes and gigabytes.)
# check_symbols.sh <build directory>: flags come from its compile_commands.json.
set -eu
build=$(cd "$1" && pwd)
python3 - "$build/compile_commands.json" <<'PYTHON'
import concurrent.futures, json, os, pathlib, shlex, subprocess, sys, tempfile


def symbols_of(entry):
    arguments = shlex.split(entry["command"])
    with tempfile.TemporaryDirectory() as directory:
        output = pathlib.Path(directory) / "isa.o"
        arguments[arguments.index("-o") + 1] = str(output)
        subprocess.run([*arguments, "-O1", "-fno-inline"], cwd=entry["directory"], check=True)
        named = subprocess.run(["nm", "-C", str(output)], check=True, capture_output=True, text=True)
        return named.stdout.splitlines()


commands = json.loads(pathlib.Path(sys.argv[1]).read_text())
entries = [entry for entry in commands if pathlib.Path(entry["file"]).parent.name == "isa"]
failed = False
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    found = list(pool.map(symbols_of, entries))
for entry, symbols in zip(entries, found):
    source = pathlib.Path(entry["file"])
    own = f"samovar::{source.stem}::"
    for line in symbols:
        kind, name = line[17], line[19:]
        # t, b, d, r: local.  U: needed from elsewhere, which must be C's memory functions.
        if kind in "tbdr" or (kind in "DRB" and name.startswith(own)):
            continue
        if kind == "U" and name.startswith("samovar::") and name.endswith("::kKernels"):
            continue  # the table of a lesser set that this one requires
        if kind == "U" and name in {"memcpy", "memset", "_GLOBAL_OFFSET_TABLE_", "sqrtf"}:
            continue
        print(f"{source.name}: {line}")
        failed = True
sys.exit(failed)
PYTHON
