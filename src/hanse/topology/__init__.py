"""The topology manager: places joining federators, watches their brokers, and repairs the overlay.

What decides is pure and stands alone: `placement`, `repair`, `health`, `changes`. Around it stand the stores, the
probes over MQTT, and the HTTP service. `docs/topology.md` is the contract for federators and operators.
"""
