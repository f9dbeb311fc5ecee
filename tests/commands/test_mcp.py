"""`runnel mcp`: its options, and SKILL.md, whose commands run as they are written."""

import json
import re
import shlex
from importlib.resources import files

import anyio
import pytest
import yaml
from helpers.files import write_files
from mcp import Client
from mcp.server.mcpserver import MCPServer

SKILL = files("runnel.agents").joinpath("SKILL.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", SKILL, re.M | re.S)
    for line in block.splitlines()
]


@pytest.fixture
def folder(run, tmp_path):
    paragraphs = (
        "# Returns",
        "Goods can be returned within 14 days.",
        "The seller pays for the return of the goods.\n",
    )
    write_files(
        tmp_path,
        {
            "manual.md": "\n\n".join(paragraphs),
            "manuals/shipping.txt": "Return shipping is free of charge.\n",
            "report.txt": "The year was good. Shipping costs fell.\n",
        },
    )
    return tmp_path


def test_commands_of_the_skill(run, folder):
    assert len(COMMANDS) == 7 and {command.split()[1] for command in COMMANDS} == {
        "find",
        "index",
        "search",
        "read",
        "verify",
    }
    outputs = {}
    for command in COMMANDS:
        program, *arguments = shlex.split(command)
        done = run(*arguments)
        assert program == "runnel" and done.code == 0, f"{command}: {done.err}"
        outputs[command] = done.out
    assert "shipping.txt" in outputs[COMMANDS[3]]
    assert '"text": "The seller pays for the return of the goods.' in outputs[COMMANDS[0]]
    assert '"match": "exact"' in outputs[COMMANDS[-1]]


def test_the_skill_has_the_format_of_agent_skills(run):
    _, head, body = SKILL.split("---\n", 2)
    fields = yaml.safe_load(head)
    assert set(fields) == {"name", "description"} and re.fullmatch(
        r"[a-z0-9-]{1,64}", fields["name"]
    )
    assert 1 <= len(fields["description"]) <= 1024 and len(body.splitlines()) < 500
    assert run("mcp", "--skill").out == SKILL


def test_the_index_of_the_project_is_the_default(run, folder, monkeypatch):
    assert run("index").code == 0
    servers = []
    monkeypatch.setattr(MCPServer, "run", lambda server, transport: servers.append(server))

    async def call(name, arguments):
        async with Client(servers[-1]) as client:
            if name != "status":
                arguments |= {"structured": True}
            answer = await client.call_tool(name, arguments)
            return answer.structured_content or json.loads(answer.content[0].text)

    assert run("mcp", "--max-characters", 3000).code == 0
    found = anyio.run(call, "status", {})
    assert found["index"]["documents"] == 3 and found["index"]["place"] == str(
        folder / ".runnel" / "index"
    )
    assert (found["model"], found["max_characters"]) == ("pocket", 3000)
    (folder / "new.txt").write_text("A tuple cannot be changed.")
    for options, total in (["--no-update"], 3), ([], 4):
        assert (
            run("mcp", *options).code == 0
            and len(anyio.run(call, "search", {"query": "who wrote it"})["documents"]) == total
        )
