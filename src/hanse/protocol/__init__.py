"""The federation protocol as a pure state machine."""
