"""What the benchmark of peers knows of every library.

`peers_tensorflow` and `peers_torch` hold the libraries of each framework.
"""

import textwrap
import typing

PIXELS, CLASSES, EXAMPLES = 784, 10, 60_000
BASE = "VariationalDense weight"
XLA = " XLA"  # The ending of names of steps that XLA compiles.
# These versions work together. --no-deps, because two of the peers ask for
# torchvision, which is not needed here.
INSTALL_LINES = {
    "tensorflow": """\
python -m venv peers-tensorflow
. peers-tensorflow/bin/activate
pip install "tensorflow==2.21.*" "tf_keras==2.21.*" "keras==3.15.*"
pip install tensorflow-probability==0.25.0 edward2==0.0.2
# Edward2 needs them as old as this; pip warns of ml-dtypes.
pip install "numpy<2" "scipy<1.11"
pip install .""",
    "torch": """\
python -m venv peers-torch
. peers-torch/bin/activate
pip install "torch==2.13.*" "keras==3.15.*"
pip install --no-deps bayesian-torch==0.5.0 torchbnn==1.2
pip install --no-deps blitz-bayesian-pytorch==0.2.8 ivon-opt==0.1.3
pip install .""",
}
# Parts of the notes.
LOCAL = "local reparameterization"
SAMPLE = "one weight sample for the minibatch: half the matrix products of ours"
FLIPOUT = (
    "one weight sample for the minibatch with random signs for each example: "
    "as many matrix products as ours, and noise the size of the kernel"
)
NORMAL_KL = "KL from a normal prior in closed form"
PAPER_KL = "approximate KL from the log-uniform prior"
NO_NOISE = "no noise, no KL"


class Row(typing.NamedTuple):
    """A model to train, and how its framework does it.

    Attributes:
        package: Its library.
        loop: The loop that trains it, in words.
        step: Function of a minibatch that trains once and returns the loss.
        logits: Function of images: arrays of logits, for one sample of the
            weights where the model has some.
        gradient: Function of a minibatch: that of the weights of the first
            layer, or of their means, as an array.
        set_learning_rate: Function of a number.
        note: What differs from ours.
    """

    package: str
    loop: str
    step: typing.Callable
    logits: typing.Callable
    gradient: typing.Callable
    set_learning_rate: typing.Callable
    note: str


class Peer(typing.NamedTuple):
    """A layer of another library."""

    package: str
    layer: typing.Callable
    note: str
    # A function of the layers of a torch model that do not return their KL.
    kl: typing.Callable = lambda layers: 0.0
    # A function of parameters; Adam if it is not given.
    optimizer: typing.Callable | None = None


def peer_rows(framework, sizes, libraries=None):
    """Returns the rows of the libraries that are installed.

    Args:
        framework: `peers_tensorflow` or `peers_torch`.
        sizes: Of the inputs and of each hidden layer.
        libraries: Those of the framework if not given.
    """
    rows, missing = {}, False
    for library in libraries or framework.LIBRARIES:
        try:
            peers = library()
        except ImportError as error:
            reason = " ".join(str(error).split())
            print(f"Without {library.__name__}: {reason}")
            missing = True
            continue
        for name, peer in peers.items():
            rows.update(framework.peer_rows(name, peer, sizes))
    if missing:
        show_install_lines(framework.NAME)
    return rows


def show_install_lines(backend):
    print(f"\nFor all the peers on {backend}, in the folder of the project:\n")
    print(textwrap.indent(INSTALL_LINES[backend], 4 * " ") + "\n")
