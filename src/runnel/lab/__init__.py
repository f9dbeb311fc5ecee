"""What trains, measures and compares models. Nothing of the package outside
this folder imports it.
"""

import logging

# transformers and PEFT import it, and then it warns of kernels that it could not download
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
