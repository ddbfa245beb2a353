"""`python -m toolkit`: the console script `toolkit`, where the interpreter is what a person names."""

from toolkit.cli.main import main

if __name__ == "__main__":
    main()
