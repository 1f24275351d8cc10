"""python -m parity."""

from parity.cli import main

if __name__ == "__main__":
    main()
