"""The names that commands have for the precisions of a model's weights."""

# dtypes by the names that users write: the names in `load_backbone`
DTYPES = {"auto": "auto", "bf16": "bfloat16", "fp32": "float32", "int8": "int8"}
