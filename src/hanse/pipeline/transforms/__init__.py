"""Pure transforms `DataFrame -> DataFrame`: one dataset per module, no IO, only features of Spark Connect."""
