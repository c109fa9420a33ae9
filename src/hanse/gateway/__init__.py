"""The clients' front door: one address for all clients, which are proxied to a broker or redirected to it.

- `front`: what a client meets: listeners, TLS, WebSocket, PROXY headers, limits, CONNECT.
- `brokers`: what the gateway knows of the brokers: directory, health, dialling, drains.
- `placement`: the broker for a client, as a pure function that gives its reasons.
- `session`: one client's session across brokers, without IO.
- `model`: the TD-MQTT paper's equations.
"""
