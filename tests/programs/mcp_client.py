# Asks the server that its arguments start: each line of standard input is a tool and its arguments, as JSON.
import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main():
    command, *arguments = sys.argv[1:]
    server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    async with stdio_client(server) as (reading, writing), ClientSession(reading, writing) as session:
        await session.initialize()
        tools = (await session.list_tools()).tools
        print(
            json.dumps({tool.name: [tool.annotations.read_only_hint, tool.input_schema] for tool in tools}), flush=True
        )
        for line in sys.stdin:
            name, values = json.loads(line)
            result = await session.call_tool(name, values)
            print(json.dumps([result.is_error, "".join(part.text for part in result.content)]), flush=True)


asyncio.run(main())
