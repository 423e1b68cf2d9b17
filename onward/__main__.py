"""The command `onward`, also as `python -m onward`. What it needs is imported where Ctrl-C already has an answer."""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from onward.cli.main import main as command

        return command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
