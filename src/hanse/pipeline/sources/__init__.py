"""Python data source `mqtt`: options, reading from the spool, writing to a broker."""
