"""`python -m velodrome` is the command `velodrome`."""

from velodrome.cli import main

if __name__ == "__main__":
    main()
