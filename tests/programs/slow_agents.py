"""Serve agents with a `find` that reads until it is stopped.

Arguments: "stdio" or "http", and the folder to serve. The address of HTTP is printed.
"""

import sys
from pathlib import Path
from typing import Any

from helpers.command_line import SlowRetriever

from runnel.agents.documents import AgentSettings, Models
from runnel.agents.server import create_server, serve_http
from runnel.agents.tools import Tools

settings = AgentSettings((Path(sys.argv[2]),))
stand_in: Any = SlowRetriever
server = create_server(Tools(settings, Models(settings, stand_in)))
if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    serve_http(server, 0, lambda url: print(url, flush=True))
