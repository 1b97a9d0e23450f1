"""`python -m selector`."""

from selector.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
