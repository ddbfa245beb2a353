"""`python -m toolkit`: the console script `toolkit`, where the interpreter is what a person names."""

from toolkit.cli.start import toolkit

if __name__ == "__main__":
    toolkit()
