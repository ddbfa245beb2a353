"""`python -m sagemaker_training.cli.train` is the command `train`."""

from toolkit.cli.start import train

__all__ = ["main"]


def main() -> None:
    """Run the job of this container and end this process with its exit code."""
    train()


if __name__ == "__main__":
    main()
