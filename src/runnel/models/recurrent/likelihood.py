"""Query likelihood: how probable a language model finds the query as what follows the document
(Ponte and Croft, "A Language Modeling Approach to Information Retrieval", 1998; with pretrained
models, Sachan et al., "Improving Passage Retrieval with Zero-Shot Question Generation", 2022).

n  documents      T  tokens of the query      D  width of hidden vectors
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from runnel.models.head import Head
from runnel.models.model import Model
from runnel.models.recurrent.language_model import embedding_table, lm_head
from runnel.text.templates import Template

TEMPLATE = "{document}\n\nQuestion: {query}"


class QueryLikelihood(Head):
    """The mean log probability (natural logarithm) of the query's tokens, from the hidden vectors
    before each. It has no weights but the model's LM head.

    Unlike Sachan et al. it asks in the words of `TEMPLATE`, because recurrent checkpoints are
    seldom tuned to follow an instruction.
    """

    inputs = "tokens"

    def __init__(self, model: Model) -> None:
        super().__init__()
        begin = "" if model.tokenizer.begin_id is None else "{begin}"
        self.template = Template.parse(begin + TEMPLATE)
        self._lm_head = lm_head(model)
        self._table = embedding_table(model.backbone)
        self._vocabulary = model.tokenizer.vocab_size  # further rows of the LM head are padding

    def __call__(self, hidden: Iterable[Tensor], query: np.ndarray) -> Tensor:
        """The hidden vectors (n, T, D) before each token of the query, and the query's ids (T,) ->
        scores (n,) fp32.
        """
        asked = torch.from_numpy(query.astype(np.int64)).to(self._table.device)
        scores = []
        for vectors in hidden:  # (T, D); the logits of one document at a time are in memory
            logits = self._lm_head(vectors.to(self._table.device), self._table)
            log_probabilities = logits[:, : self._vocabulary].float().log_softmax(-1)
            scores.append(log_probabilities.gather(1, asked[:, None]).mean().cpu())
        return torch.stack(scores)
