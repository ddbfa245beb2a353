"""The ranges of the numbers and names that hosts tell each other. A message with a value outside them is refused."""

from typing import Annotated

from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=255)]
SignalNumber = Annotated[int, Meta(ge=1, le=64)]
ExitCode = Annotated[int, Meta(ge=0, le=255)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
Nanoseconds = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
Count = Annotated[int, Meta(ge=0, le=1 << 31)]
Rank = Annotated[int, Meta(ge=0, le=1 << 24)]
