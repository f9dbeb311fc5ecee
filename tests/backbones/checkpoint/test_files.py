"""Which files of a folder or a hub model are the checkpoint: names, parts, several kinds at once;
and damaged or hostile ones.

Models and tensors of other kinds: tests/backbones/test_formats.py.
"""

import json
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoint_writing import refused, write_checkpoint
from safetensors.torch import load_file, save_file
from torch import Tensor

from runnel.backbones.checkpoint.finding import find_checkpoint, read_config
from runnel.backbones.checkpoint.load import load_backbone, open_weights
from runnel.errors import CheckpointError, NumericalError

MAMBA2: dict[str, Tensor] = load_file(
    Path(__file__).parents[2] / "golden" / "mamba2-tiny-hf" / "model.safetensors"
)


def write(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        tensors = {name: torch.zeros(2)}
        save = save_file if name.endswith(".safetensors") else torch.save
        save(tensors, folder / name)
    return folder


NUMBERED = [f"model-0000{k}-of-00003.safetensors" for k in (1, 2, 3)]
PICKLES = [f"pytorch_model-0000{k}-of-00002.bin" for k in (1, 2)]
# more than nine: they are in the order of numbers, not of letters
OFFICIAL = [f"model_{k}.safetensors" for k in range(12)]


@pytest.mark.parametrize(
    ("names", "read"),
    [
        *(
            (names, names)
            for names in (
                NUMBERED,
                PICKLES,
                OFFICIAL,
                OFFICIAL[:1],
                ["a.pth"],
                ["model.safetensors"],
            )
        ),
        (["model.safetensors", *NUMBERED, "pytorch_model.bin", "a.pth"], ["model.safetensors"]),
        ([*NUMBERED, "pytorch_model.bin", "a.pth"], NUMBERED),
        (["pytorch_model.bin", *PICKLES, "a.pth"], ["pytorch_model.bin"]),
        (["a.pth", "b.safetensors"], ["a.pth"]),
    ],
)
def test_one_set_of_weights_is_read(tmp_path: Path, names: list[str], read: list[str]) -> None:
    write(tmp_path, *names)
    (tmp_path / "expected.safetensors").write_text("not the checkpoint's")
    assert [(name, stored.file) for name, stored in open_weights(tmp_path).items()] == [
        (name, name) for name in read
    ]


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ([NUMBERED[0], NUMBERED[2]], "lacks 1 of the 3 .*model-00002-of-00003.safetensors"),
        ([PICKLES[0]], "lacks 1 of the 2 .*pytorch_model-00002-of-00002.bin"),
        (
            [OFFICIAL[0], OFFICIAL[11]],
            r"lacks 10 of the 12 .*model_1\.safetensors, .* and 4 more",
        ),
        ([*NUMBERED, "model-00001-of-00002.safetensors"], "parts of several checkpoints"),
        (
            [*NUMBERED, "model-00007-of-00003.safetensors"],
            "several checkpoints, such as model-00007-of-00003.safetensors",
        ),
        (
            ["RWKV-0.1B.pth", "RWKV-0.4B.pth"],
            "has 2 checkpoints: RWKV-0.1B.pth, RWKV-0.4B.pth; name .*/RWKV-0.4B.pth",
        ),
        (
            ["rwkv7.safetensors"],
            "has no weights: expected one of .*; if .*/rwkv7.safetensors is meant, name it",
        ),
    ],
)
def test_missing_parts_and_weights(tmp_path: Path, names: list[str], missing: str) -> None:
    with pytest.raises(CheckpointError, match=missing):
        open_weights(find_checkpoint(write(tmp_path, *names)))


def test_a_tensor_in_two_parts_and_a_part_alone(tmp_path: Path) -> None:
    write(tmp_path, *NUMBERED)
    with pytest.raises(
        CheckpointError, match=r"model-00002-of-00003\.safetensors.* is no whole checkpoint"
    ):
        load_backbone(tmp_path / NUMBERED[1])
    for name in NUMBERED[1:]:
        save_file({"x": torch.zeros(2)}, tmp_path / name)
    with pytest.raises(
        CheckpointError, match=r"x is in model-00003\S+ and in model-00002\S+; keep one"
    ):
        open_weights(tmp_path)


@pytest.mark.parametrize("name", ["a.pth", "b.safetensors", "c.bin"])
def test_a_weights_file_can_be_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, "model.safetensors", "a.pth", "b.safetensors", "c.bin", "d.pth")
    (tmp_path / "config.json").write_text('{"d_model": 3}')
    for source in (tmp_path / name, str(tmp_path / name)):
        assert find_checkpoint(source) == tmp_path / name
        assert list(open_weights(tmp_path / name)) == [name]
        assert read_config(tmp_path / name) == {"d_model": 3}  # of the folder it is in


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("file", ["rwkv.pth", "models/rwkv.pth", "./rwkv.safetensors", "/no/rwkv.bin"]),
        ("folder", ["nowhere", "./no/such/folder", "/no/such/folder", "a/b/c", "owner/with space"]),
    ],
)
def test_unknown_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, names: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in names:
        with pytest.raises(
            CheckpointError, match=rf"unknown model '.*': there is no {kind} /.*check the spelling"
        ):
            find_checkpoint(name)


def test_config_of_the_official_xlstm_folder(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "embedding_dim: 128\nuse_bias: false\ngate_soft_cap: 15.0\nkernel: chunk\n"
    )
    assert read_config(tmp_path) == {
        "embedding_dim": 128,
        "use_bias": False,
        "gate_soft_cap": 15.0,
        "kernel": "chunk",
    }
    (tmp_path / "config.json").write_text('{"model_type": "xlstm"}')
    assert read_config(tmp_path) == {"model_type": "xlstm"}


@pytest.mark.parametrize("text", ["a: [1", "a: !!python/object/apply:os.system [date]", "- a", ""])
def test_damaged_yaml(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.yaml"):
        read_config(tmp_path)


def test_a_file_that_the_system_will_not_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise RuntimeError(
            "unable to mmap 99999999999 bytes from file </x>: Cannot allocate memory (12)"
        )

    write(tmp_path, "a.pth")
    monkeypatch.setattr("torch.load", load)
    with pytest.raises(CheckpointError, match=r"a\.pth has .* bytes"):
        open_weights(tmp_path)


class Hub:
    """Stands in for huggingface_hub: serves the files of a local folder."""

    def __init__(self, served: Path, cache: Path) -> None:
        self.served, self.cache, self.online = served, cache, True
        self.fetched: list[str] = []

    def snapshot_download(self, hub_id: str, allow_patterns: list[str]) -> str:
        self.check(hub_id)
        for path in sorted(self.served.iterdir()):
            if any(path.match(pattern) for pattern in allow_patterns):
                (self.cache / path.name).write_bytes(path.read_bytes())
                self.fetched.append(path.name)
        return str(self.cache)

    def list_repo_files(self, hub_id: str) -> list[str]:
        self.check(hub_id)
        return [path.name for path in self.served.iterdir()]

    def try_to_load_from_cache(self, hub_id: str, file: str) -> str | None:
        path = self.cache / file
        return str(path) if path.exists() else None

    def check(self, hub_id: str) -> None:
        assert hub_id == "owner/rwkv"
        if not self.online:
            raise ConnectionError("no network")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Hub]:
    monkeypatch.chdir(tmp_path)

    def serve(*names: str) -> Hub:
        write(tmp_path / "served", *names)
        for name in ("README.md", "rwkv_vocab_v20230424.txt", "chart.png"):
            (tmp_path / "served" / name).write_text("x")
        (tmp_path / "cache").mkdir()
        hub = Hub(tmp_path / "served", tmp_path / "cache")
        for name in ("snapshot_download", "list_repo_files", "try_to_load_from_cache"):
            monkeypatch.setattr(f"huggingface_hub.{name}", getattr(hub, name))
        return hub

    return serve


def test_one_of_several_pth_is_fetched(hub: Callable[..., Hub]) -> None:
    served = hub("a.pth", "b.pth")
    with pytest.raises(
        CheckpointError,
        match=r"owner/rwkv has 2 checkpoints: a.pth, b.pth; name the one.* owner/rwkv/b.pth",
    ):
        find_checkpoint("owner/rwkv")
    assert find_checkpoint("owner/rwkv/b.pth") == served.cache / "b.pth"
    assert "a.pth" not in served.fetched
    assert list(open_weights(served.cache / "b.pth")) == ["b.pth"]
    with pytest.raises(CheckpointError, match=r"owner/rwkv .*c\.pth.*a\.pth, b\.pth"):
        find_checkpoint("owner/rwkv/c.pth")


def test_parts_are_fetched(hub: Callable[..., Hub]) -> None:
    served = hub(*OFFICIAL, "pytorch_model.bin")
    assert find_checkpoint("owner/rwkv") == served.cache
    assert sorted(served.fetched[2:]) == sorted(OFFICIAL)


def test_offline(hub: Callable[..., Hub]) -> None:
    """What was fetched before is used; for the rest the message says what to fetch and where it was
    looked for.
    """
    served = hub("a.pth", "b.pth")
    find_checkpoint("owner/rwkv/b.pth")
    served.online = False
    assert find_checkpoint("owner/rwkv/b.pth") == served.cache / "b.pth"
    assert find_checkpoint("owner/rwkv") == served.cache
    message = r"'owner/rwkv/a.pth': .* folder /.* cache /.*\(hf download owner/rwkv a.pth\)"
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint("owner/rwkv/a.pth")


def test_no_password_of_a_mirror_and_no_token_is_shown(
    hub: Callable[..., Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = hub("a.pth")
    monkeypatch.setenv("HF_TOKEN", "hf_s3cr3tOfAUser")

    def check(hub_id: str) -> None:
        raise OSError(
            "401 Client Error for url: https://me:s3cr3t@mirror/api?token=s3cr3t, not authorized by"
            " hf_s3cr3tOfAUser"
        )

    monkeypatch.setattr(served, "check", check)
    with pytest.raises(CheckpointError, match="mirror") as caught:
        find_checkpoint("owner/rwkv")
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


def test_unknown_hub_id_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        CheckpointError,
        match=r"unknown model 'nobody/nothing': .* hub cache /.*download it once while online",
    ):
        load_backbone("nobody/nothing")


# ---- damaged and hostile files -------------------------------------------------------------------


@pytest.mark.parametrize("text", ["{", "[1]", '"x"', "\x00\x01"])
def test_broken_config(tmp_path: Path, text: str) -> None:
    refused(write_checkpoint(tmp_path, MAMBA2, text), "config.json")


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("keep", [0, 4, 200, -1, -5000])
def test_truncated_weights(tmp_path: Path, keep: int, file: str) -> None:
    path = write_checkpoint(tmp_path, MAMBA2, None, file) / file
    path.write_bytes(path.read_bytes()[:keep])
    refused(tmp_path, file, "damaged")


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_git_lfs_pointer(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
    )
    refused(tmp_path, file, "is a Git LFS pointer, not the weights", "git lfs pull")


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("harm"),)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_code_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    if zipped:
        torch.save({"x": Harmful()}, tmp_path / "pytorch_model.bin")
    else:
        (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Harmful()}, protocol=2))
    refused(tmp_path, "never runs code from a checkpoint", "model.safetensors")
    assert not (tmp_path / "harm").exists()


def test_training_checkpoint(tmp_path: Path) -> None:
    torch.save({"model": MAMBA2, "step": torch.tensor(3)}, tmp_path / "pytorch_model.bin")
    refused(
        tmp_path,
        "not a flat dict of tensors (it holds model, step)",
        "save only the model's state dict",
    )


def write_shards(folder: Path, weight_map: dict[str, str]) -> None:
    files: dict[str, dict[str, Tensor]] = {}
    for name, file in weight_map.items():
        files.setdefault(file, {})[name] = MAMBA2.get(name, torch.zeros(1))
    for file, content in files.items():
        if "/" not in file:
            save_file(content, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_missing_shard_and_index_of_other_shards(tmp_path: Path) -> None:
    names = sorted(MAMBA2)
    write_shards(
        tmp_path,
        dict.fromkeys(names[:5], "a.safetensors") | dict.fromkeys(names[5:], "b.safetensors"),
    )
    (tmp_path / "b.safetensors").unlink()
    refused(tmp_path, "lacks 1 of the 2 files", "b.safetensors")
    write_shards(tmp_path, dict.fromkeys([*names[1:], "backbone.more"], "a.safetensors"))
    refused(tmp_path, "missing tensor 'embeddings.weight'")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    refused(tmp_path, "weight_map")


@pytest.mark.parametrize("shard", ["../a.safetensors", "/etc/passwd", "sub/a.safetensors", ".."])
def test_index_cannot_leave_its_folder(tmp_path: Path, shard: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": shard}}))
    refused(tmp_path, repr(shard))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name", ["backbone.layers.1.mixer.A_log", "backbone.embeddings.weight", "binary_head.weight"]
)
def test_not_a_number(tmp_path: Path, name: str, value: float) -> None:
    tensors = {
        key: tensor.half()
        for key, tensor in (MAMBA2 | {"binary_head.weight": torch.ones(1, 64)}).items()
    }
    tensors[name].view(-1)[-1] = value
    write_checkpoint(tmp_path, tensors)
    with pytest.raises(
        NumericalError,
        match=rf"{tmp_path.name}: tensor '.*{name.split('.')[-1]}' in model.safetensors",
    ):
        load_backbone(tmp_path)
