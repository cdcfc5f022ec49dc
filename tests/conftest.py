import os

# tensorflow turns oneDNN on where it expects a gain, and without it has no
# convolutions with the channels first on a CPU.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(autouse=True)
def fixed_seed():
    keras.utils.set_random_seed(0)
