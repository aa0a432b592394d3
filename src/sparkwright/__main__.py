"""`python -m sparkwright`: the command line."""

from sparkwright.core.cli import main

if __name__ == "__main__":
    main()
