"""`python -m offtune` is the same as `offtune`."""

from offtune.cli import main

if __name__ == "__main__":
    main()
