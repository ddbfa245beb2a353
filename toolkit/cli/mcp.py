"""`toolkit mcp`: answers of the commands that only read, for programs that speak the Model Context Protocol.

Each tool runs the command of its name in a process of its own, so it answers as the command does, and neither a fault
nor a long wait of one stops the others.
"""

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

from toolkit.cli.parser import Parser
from toolkit.errors import UserError
from toolkit.log import Log
from toolkit.own_module import own_module

if TYPE_CHECKING:
    from mcp.server import MCPServer

EXTRA = "pip install 'container-training-toolkit[mcp]'"
INSTRUCTIONS = (
    "Why training jobs failed, and what they do. A job is a name that the tool jobs shows, a job's folder, or, for the"
    " tool why, a storage address of it. Ask why first: its answer names the cause, what to do, and where to read more."
)


def add(parser: Parser) -> None:
    """Declare the arguments: there are none."""
    parser.description = (
        "Serve the answers of toolkit why, jobs, describe and compare to a program that speaks the Model Context"
        " Protocol, on standard input and output. Nothing is written. It runs until the program closes its input, and"
        f" needs the extra mcp: {EXTRA}. toolkit docs for-programs"
    )


def run(arguments: argparse.Namespace, log: Log) -> int:  # noqa: ARG001 - every command is called alike
    """Serve until standard input ends; return 0.

    Raises:
        UserError: the package mcp is missing.
    """
    try:
        server = make_server()
    except ImportError as error:
        message = f"needs the package mcp, 2.3 or newer, which cannot be imported ({error})"
        raise UserError(message, where="toolkit mcp", hint=f"Install it: {EXTRA}") from None
    server.run("stdio")
    return 0


def make_server() -> "MCPServer[object]":
    """Return the server with its tools.

    Raises:
        ImportError: the package mcp is missing, or another version.
    """
    from anyio.to_thread import run_sync
    from mcp.server import MCPServer
    from mcp.types import ToolAnnotations

    import toolkit

    server: MCPServer[object] = MCPServer(
        "container-training-toolkit", version=toolkit.__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )

    async def why(job: str) -> str:
        """Say why a job ended, or what it does: state, exit code, cause, culprit, evidence, what to do; JSON."""
        return await run_sync(answer, "why", "--json", "--", job)

    async def jobs(limit: int = 20, running: bool = False) -> str:
        """List the jobs of toolkit run, the newest first; running: only those that run; JSON."""
        return await run_sync(answer, "jobs", "--json", f"--limit={limit}", *(["--running"] if running else []))

    async def describe(job: str) -> str:
        """Show all facts of a job of toolkit run: hyperparameters, channels, times, metrics, hosts; JSON."""
        return await run_sync(answer, "describe", "--json", "--", job)

    async def compare(job: str, other: str) -> str:
        """Set two jobs side by side: differences, savings, throughput, loss, findings; several runs with commas; JSON.

        All percentages are of the first."""
        return await run_sync(answer, "compare", "--format=json", "--output=-", "--", job, other)

    for tool in (why, jobs, describe, compare):
        server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    return server


def answer(*words: str) -> str:
    """Return what `toolkit` prints for *words*.

    Raises:
        ToolError: it fails; the text is its error.
    """
    from mcp.server.mcpserver.exceptions import ToolError

    command = (*own_module(sys.executable, "toolkit"), *words)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise ToolError(done.stderr.strip() or f"toolkit {words[0]} ended with {done.returncode}")
    return done.stdout
