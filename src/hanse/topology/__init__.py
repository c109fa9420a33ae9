"""The topology manager: places joining federators, watches their brokers, and repairs the overlay.

The decisions are pure and stand alone: `placement`, `repair`, `health`, `changes`. Around them are the stores, the
probes over MQTT, and the HTTP service. `docs/topology.md` is the contract for federators and operators.
"""
