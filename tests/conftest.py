"""Settings of the whole test run: property tests have no per-example deadline, because CI machines are shared."""

from hypothesis import HealthCheck, settings

settings.register_profile("soloist", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("soloist")
