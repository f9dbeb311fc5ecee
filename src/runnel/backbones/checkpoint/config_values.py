"""Read the values of a published model's config, and check that the weights agree with them."""

import re
from collections.abc import Mapping

from runnel.errors import CheckpointError

# the values of an option that a model does not use
OFF: tuple[object, ...] = (None, False, [], {})
# Names of classes: BiMambaModel and LlamaBiForMNTP match; BigBird and BioGpt do not.
_BOTH_WAYS_CLASS = re.compile(r"(^|[a-z0-9])Bi(?=[A-Z])|[Bb]idirec")
_BOTH_WAYS_KEY = re.compile("bi_?direc", re.IGNORECASE)


def reads_both_ways(config: Mapping[str, object]) -> str | None:
    """Return the entry of a config.json that says that a token is read with later tokens too, in
    words; None if no entry says so.
    """
    if config.get("is_causal") is True:
        return None
    for key, value in config.items():
        if (key == "is_causal" and value is False) or (_BOTH_WAYS_KEY.search(key) and value):
            return f"{key} is {value!r}"
    architectures = config.get("architectures")
    listed = architectures if isinstance(architectures, list) else []
    classes = [*map(str, listed), *code_classes(config)]
    named = next((name for name in classes if _BOTH_WAYS_CLASS.search(name)), None)
    return named and f"it names the class {named}"


def code_classes(config: Mapping[str, object]) -> list[str]:
    """Return the classes that `auto_map` of a config.json names, other than tokenizers: the model
    has code of its own.
    """
    named = config.get("auto_map") or {}
    return (
        [str(name) for key, name in named.items() if key != "AutoTokenizer"]
        if isinstance(named, Mapping)
        else [str(named)]
    )


def expect_options(
    config: Mapping[str, object],
    known: Mapping[str, tuple[object, ...]],
    where: str,
    what: str = "published models have",
) -> None:
    """Raise CheckpointError for an option that changes what is computed, unless it has one of its
    `known` values; the first of them applies where the config does not have the option.

    `where` is the path for messages, and `what` their words before the expected value (at most two
    of several: the usual one and another).
    """
    for key, values in known.items():
        if config.get(key, values[0]) not in values:
            expected = " or ".join(map(repr, values[:2]))
            raise CheckpointError(
                f"{where}: {key} is {config[key]!r} in its config, {what} {expected}"
            )


def expect_agreement(
    config: Mapping[str, object], weights: Mapping[str, object], where: str
) -> None:
    """Raise CheckpointError if a config has other values than the weights. A value that the config
    lacks, or that is None, is not compared.
    """
    said = {key: value for key, value in config.items() if value is not None}
    expect_options(
        said, {key: (value,) for key, value in weights.items()}, where, "in the weights it is"
    )


def whole_number(
    config: Mapping[str, object], key: str, where: str, default: int | None = None
) -> int:
    """Return a positive whole number of a config; 4.0 is one too."""
    value = config.get(key, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        came = "is missing" if value is None else f"is {value!r}"
        raise CheckpointError(
            f"{where}: {key} {came} in its config, expected a positive whole number"
        )
    return value


def number(value: object, key: str, where: str) -> float:
    """Return a number of a config. JSON has no infinity: configs write it as a word, and
    transformers 5 as {"__float__": "Infinity"}.
    """
    if isinstance(value, Mapping):
        value = value.get("__float__")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{where}: {key} is {value!r} in its config, expected a number"
        ) from error
