"""Variational dropout for Keras 3 (Kingma, Salimans, Welling 2015)."""

# The first import: without a backend it says what to install.
from keras_vdrop import backend as _backend  # noqa: F401
from keras_vdrop import callbacks
from keras_vdrop import layers
from keras_vdrop.core import divergence
from keras_vdrop.core import losses
from keras_vdrop.core import priors
from keras_vdrop.diagnostics import metrics
from keras_vdrop.diagnostics.evaluation import evaluate
from keras_vdrop.diagnostics.gradient_variance import gradient_variance
from keras_vdrop.diagnostics.rates import plot_rates
from keras_vdrop.diagnostics.reliability import plot_reliability
from keras_vdrop.diagnostics.risk_coverage import plot_least_sure
from keras_vdrop.diagnostics.risk_coverage import plot_risk_coverage
from keras_vdrop.diagnostics.summary import summary
from keras_vdrop.layers import Variational
from keras_vdrop.layers import VariationalConv1D
from keras_vdrop.layers import VariationalConv1DTranspose
from keras_vdrop.layers import VariationalConv2D
from keras_vdrop.layers import VariationalConv2DTranspose
from keras_vdrop.layers import VariationalConv3D
from keras_vdrop.layers import VariationalConv3DTranspose
from keras_vdrop.layers import VariationalConvLSTM1D
from keras_vdrop.layers import VariationalConvLSTM2D
from keras_vdrop.layers import VariationalConvLSTM3D
from keras_vdrop.layers import VariationalDense
from keras_vdrop.layers import VariationalDepthwiseConv1D
from keras_vdrop.layers import VariationalDepthwiseConv2D
from keras_vdrop.layers import VariationalDropout
from keras_vdrop.layers import VariationalEinsumDense
from keras_vdrop.layers import VariationalEmbedding
from keras_vdrop.layers import VariationalGroupQueryAttention
from keras_vdrop.layers import VariationalGRU
from keras_vdrop.layers import VariationalLSTM
from keras_vdrop.layers import VariationalMultiHeadAttention
from keras_vdrop.layers import VariationalReversibleEmbedding
from keras_vdrop.layers import VariationalSeparableConv1D
from keras_vdrop.layers import VariationalSeparableConv2D
from keras_vdrop.layers import VariationalSimpleRNN
from keras_vdrop.models.batch_normalization import update_batch_normalization
from keras_vdrop.models.compressed import load_compressed
from keras_vdrop.models.compressed import save_compressed
from keras_vdrop.models.conversion import to_deterministic
from keras_vdrop.models.conversion import to_variational
from keras_vdrop.models.folding import fold_batch_normalization
from keras_vdrop.models.objective import set_num_examples
from keras_vdrop.models.prediction import predict
from keras_vdrop.models.pruned import prune
from keras_vdrop.models.smallest import compress
from keras_vdrop.models.traversal import variational_layers

__all__ = [
    "Variational",
    "VariationalConv1D",
    "VariationalConv1DTranspose",
    "VariationalConv2D",
    "VariationalConv2DTranspose",
    "VariationalConv3D",
    "VariationalConv3DTranspose",
    "VariationalConvLSTM1D",
    "VariationalConvLSTM2D",
    "VariationalConvLSTM3D",
    "VariationalDense",
    "VariationalDepthwiseConv1D",
    "VariationalDepthwiseConv2D",
    "VariationalDropout",
    "VariationalEinsumDense",
    "VariationalEmbedding",
    "VariationalGRU",
    "VariationalGroupQueryAttention",
    "VariationalLSTM",
    "VariationalMultiHeadAttention",
    "VariationalReversibleEmbedding",
    "VariationalSeparableConv1D",
    "VariationalSeparableConv2D",
    "VariationalSimpleRNN",
    "callbacks",
    "compress",
    "divergence",
    "evaluate",
    "fold_batch_normalization",
    "gradient_variance",
    "layers",
    "load_compressed",
    "losses",
    "metrics",
    "plot_least_sure",
    "plot_rates",
    "plot_reliability",
    "plot_risk_coverage",
    "predict",
    "priors",
    "prune",
    "save_compressed",
    "set_num_examples",
    "summary",
    "to_deterministic",
    "to_variational",
    "update_batch_normalization",
    "variational_layers",
]

__version__ = "0.1.0"
