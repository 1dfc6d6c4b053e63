"""Samovar keeps a language model hot on your own CPU and serves it with the OpenAI API."""

__version__ = "0.1.0"
