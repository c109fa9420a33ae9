"""Shared subscriptions that deliver each message once across all brokers (`share = once`).

Every `$share/NAME/FILTER` has one serving broker: the first live one in the order of a rendezvous hash. Each member has
a second, internal session there, under the client id `ID~share`. Only that broker therefore has interest in the filter,
and the broker itself chooses a member for each message.

- `tap`: changes on the client's connection, without IO: requests are split, deliveries are inserted.
- `link`: the second session.
- `shares`: the members of one worker, and the change of a serving broker.
"""
