"""What holds for the tests of all rooms."""

from hypothesis import HealthCheck, settings

# How long an example takes, or is drawn, is the machine's affair: others may work on it. Loaded before any test module
# is imported, so that settings of a test's own begin with these.
settings.register_profile("hanse", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hanse")
