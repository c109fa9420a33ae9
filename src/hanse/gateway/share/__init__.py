"""Shared subscriptions that deliver each message once across all brokers (`share = once`).

Every `$share/NAME/FILTER` has one serving broker: the first live one in the order of a rendezvous hash. Each member has
a second, internal session there, under the client id `ID~share`. So interest in the filter exists at that broker alone,
and the broker itself chooses a member for each message.

- `tap`: what happens on the client's connection, without IO: requests are split, deliveries are mixed in.
- `link`: the second session.
- `shares`: the members of one worker, and what happens when a serving broker changes.
"""
