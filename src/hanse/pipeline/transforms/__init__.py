"""Pure `DataFrame -> DataFrame`, one dataset a module: no IO, and only what Spark Connect can do too."""
