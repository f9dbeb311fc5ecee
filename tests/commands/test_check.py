"""`runnel check`: damage of an index is named."""

import json

from helpers.files import write_files


def test_check_names_what_is_damaged(run, tmp_path):
    folder = tmp_path
    write_files(
        folder,
        {
            "notes/heart.txt": "The heart is a muscle. It pumps blood.",
            "notes/river.txt": "Rivers carry water to the sea.",
        },
    )
    run("index", "notes", "--to", "library")
    done = run("check", "--in", "library")
    assert done.code == 0 and done.out == "library: 2 documents, 2 passages, none damaged\n"
    [data] = (folder / "library" / "documents.lance" / "data").iterdir()
    data.write_bytes(data.read_bytes().replace(b"It pumps blood", b"It pumps flood"))
    done = run("check", "--in", "library")
    assert (
        done.code == 1
        and done.err.count("\n") == 1
        and done.out.startswith("library: 1 damaged; restore it from a copy")
    )
    assert (
        f"runnel: damaged: {folder / 'notes' / 'heart.txt'}: its text, title, file or metadata is"
        " not what was stored" in done.err
    )
    told = json.loads(run("check", "--in", "library", "--json").out)
    assert told["documents"] == 2 and [one["document"] for one in told["damaged"]] == [
        str(folder / "notes" / "heart.txt")
    ]
