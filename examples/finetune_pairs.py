"""Fine-tune the built-in embedder on pairs with sentence-transformers' own trainer. `runnel lab
train pairs` does the same.

python examples/finetune_pairs.py tuned-model
"""

import sys
from pydoc_data.topics import topics

from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from runnel import Embedder
from runnel.integrations.sentence_transformers import sentence_transformer


def main() -> None:
    """Train on names of chapters of the Python language reference and their first words, and say
    what it did.
    """
    chapters = {
        name.replace("-", " "): " ".join(topics[name].split()[5:15]) for name in sorted(topics)[:32]
    }
    names = list(chapters)
    beginnings = list(chapters.values())
    pairs = Dataset.from_dict({"query": names, "document": beginnings})
    model = sentence_transformer("pocket")
    target = sys.argv[1] if len(sys.argv) > 1 else "tuned-model"
    settings = SentenceTransformerTrainingArguments(
        target,
        max_steps=6,
        learning_rate=1e-4,
        per_device_train_batch_size=16,
        save_strategy="no",
        report_to=[],
    )
    SentenceTransformerTrainer(
        model, settings, train_dataset=pairs, loss=MultipleNegativesRankingLoss(model)
    ).train()
    model.save_pretrained(target)
    for model_name in ("pocket", target):
        embedder = Embedder.load(model_name)
        scores = embedder.encode(names) @ embedder.encode(beginnings).T
        first = sum(int(row.argmax() == i) for i, row in enumerate(scores))
        print(f"{model_name}: the right chapter is first for {first} of {len(chapters)} names")


if __name__ == "__main__":
    main()
