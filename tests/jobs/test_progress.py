"""What long work reports: lines to the log, and progress to whatever shows it."""

from runnel.jobs import progress


def test_lines_go_to_the_log_and_progress_is_shown_only_if_asked_for(caplog, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_show", progress._show)
    progress.notify("note: 100 %s of it")
    assert [record.getMessage() for record in caplog.records] == ["note: 100 %s of it"]
    with progress.open_progress("reading") as unshown:
        assert list(unshown.count("abc")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")
    opened = []

    class Shown(progress.WorkProgress):
        def __init__(self, label, unit):
            self.label = label
            opened.append((label, unit))

        def __enter__(self):
            return self

        def __exit__(self, *error):
            opened.append(self.label)

        def __call__(self, done, total=None):
            opened.append((done, total))

    progress.show_progress_with(Shown)
    with progress.open_progress("reading", "rows") as shown:
        for _ in shown.count("ab", 2):
            shown.label = "ranking"
    assert opened == [("reading", "rows"), (1, 2), (2, 2), "ranking"]
