"""``python -m icefield.cli``: the same as the ``icefield`` command, for processes that start others."""

from icefield.cli.program import main

if __name__ == "__main__":
    main()
