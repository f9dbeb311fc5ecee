"""`runnel ray`: the options of the cluster."""

import pytest


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ([], None),
        (["--address", "auto"], "auto"),
        (["--address", "ray://head:10001"], "ray://head:10001"),
    ],
)
def test_files_are_read_by_the_workers_that_are_asked_for(
    run, tmp_path, monkeypatch, options, address
):
    asked = {}
    (tmp_path / "notes").mkdir()
    for name in ("heart", "river"):
        (tmp_path / "notes" / f"{name}.txt").write_text(f"This is about a {name}.")

    def index_files(index, paths, *, selection, prune, limits, ocr, progress, **cluster):
        asked.update(cluster, paths=paths, prune=prune)
        return index.add_files(
            paths, selection=selection, prune=prune, limits=limits, ocr=ocr, progress=progress
        )

    monkeypatch.setattr("runnel.integrations.ray.index_files", index_files)
    done = run(
        "ray", "notes", "--to", "library", "--keep-missing", *options, "--workers", 2, "--gpus", 0.5
    )
    assert done.code == 0 and done.out.startswith("library: 2 added; 2 documents, ")
    assert asked == {
        "paths": ["notes"],
        "prune": False,
        "address": address,
        "workers": 2,
        "cpus": 1,
        "gpus": 0.5,
    }
