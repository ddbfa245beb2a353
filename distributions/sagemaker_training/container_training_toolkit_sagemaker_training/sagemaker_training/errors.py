"""The exceptions by which framework packages report an error of the user's script or requirements."""


class ClientError(Exception):
    """An error that the user can correct.

    `report`: the failure file's whole text, if the toolkit made one; `train` uses it in place of the exception's.
    """

    report = ""


class SMTrainingCompilerConfigurationError(Exception):
    """The job asks for the SageMaker Training Compiler wrongly."""


class _CalledProcessError(ClientError):
    """A process ended with an error. `return_code` is text; `output` may be bytes; `extra_info` says where and how."""

    def __init__(
        self,
        cmd: object,
        return_code: int | str | None = None,
        output: str | bytes | None = None,
        info: str | None = None,
    ) -> None:
        self.cmd = cmd
        self.return_code = str(return_code)
        self.output = output
        self.extra_info = info
        super().__init__()

    def __str__(self) -> str:
        output = self.output.decode("utf-8", "replace") if isinstance(self.output, bytes) else self.output or ""
        lines = [f"{type(self).__name__}:", f"ExitCode {self.return_code}", f'ErrorMessage "{output}"']
        if self.extra_info is not None:
            lines.append(f'ExtraInfo "{self.extra_info}"')
        return "\n".join((*lines, f'Command "{self.cmd}"')).strip()


class InstallModuleError(_CalledProcessError):
    """pip could not install the user's package."""


class InstallRequirementsError(_CalledProcessError):
    """pip could not install requirements.txt."""


class ImportModuleError(ClientError):
    """The user's module could not be imported."""


class ExecuteUserScriptError(_CalledProcessError):
    """The user's script failed."""


class ChannelDoesNotExistError(Exception):
    """The job has no channel of this name."""

    def __init__(self, channel_name: str) -> None:
        super().__init__(f"Channel {channel_name} is not a valid channel")


class UnsupportedFormatError(Exception):
    """The content has a type that cannot be encoded or decoded."""

    def __init__(self, content_type: str, **kwargs: object) -> None:
        self.message = f"expected one of the content types of encoders.py, found {content_type!r}"
        super().__init__(self.message, **kwargs)
