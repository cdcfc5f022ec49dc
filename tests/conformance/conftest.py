import keras
import pytest


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "requires_trainable_backend: of Keras's own tests"
    )


@pytest.fixture(autouse=True, scope="module")
def traceback_filtering():
    """Keras's test case switches it off, and not on again."""
    enabled = keras.config.is_traceback_filtering_enabled()
    yield
    if enabled:
        keras.config.enable_traceback_filtering()
