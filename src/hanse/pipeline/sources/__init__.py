"""The Python Data Source `mqtt`: options, reading from the spool, writing to a broker."""
