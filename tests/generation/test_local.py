"""A recurrent language model on this machine, asked as an endpoint is."""

from pathlib import Path

import pytest
from helpers.byte_tokenizer import Bytes

from runnel.errors import InputError
from runnel.generation.local import LocalModel

FOLDER = Path(__file__).parents[1] / "golden" / "mamba2-tiny-hf"
ASK = [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Where?"}]
PROMPT = "User: Be brief.\n\nWhere?\n\nAssistant:"


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr("runnel.models.language_model.load_tokenizer", lambda folder, backbone: Bytes())
    return LocalModel(FOLDER, dtype="float32", device="cpu")


def test_a_reply_continues_the_dialogue(model):
    assert model.url == f"local:{FOLDER}" and model.model.startswith(f"{FOLDER}@")
    parts = []
    reply = model.complete(ASK, max_tokens=5, on_text=parts.append)
    written = model.language_model.generate(PROMPT, max_tokens=5)
    assert reply.text == written.text == "".join(parts) and reply.finish == "length"
    assert (reply.prompt_tokens, reply.completion_tokens) == (len(PROMPT), 5)
    model.language_model.tokenizer.end_id = written.ids[2]
    stopped = model.complete(ASK, max_tokens=5)
    assert stopped.finish == "stop" and stopped.text == written.text[: written.ids.index(written.ids[2])]
    with pytest.raises(InputError, match=r"0\.7"):
        model.complete(ASK, max_tokens=1, temperature=0.7)
