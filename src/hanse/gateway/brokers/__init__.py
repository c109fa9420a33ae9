"""The brokers of a gateway: their set, their health, and connections to them."""
