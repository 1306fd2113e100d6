"""The console: the pages at `/` for people, over the same API that everyone else uses.

It is a client. A page asks the API of its own server, in this process and with the visitor's key, so that tenancy,
limits and numbers are the API's by construction; what a page cannot get there is added to the API first.

How to add a page:

1. Add an `Entry` to `site.ENTRIES`: its path, title, icon (`icons.py`) and module.
2. Write `pages/<module>.py` with one function:

       @page("/streams", title="Streams", about="What is declared, and what is derived from it")
       async def streams(visit: Visit) -> None:
           found = await visit.api.get("/admin/definitions")
           with panel("Streams"):
               rows_table([Column("name", "Stream", "mono"), Column("events", "Events", "number")], rows)

   It is called once for each opening of the page, inside the frame with its navigation. More paths below that of the
   entry (`/streams/{name}`) are further functions with `@page`; they get what is in braces as arguments.
3. Data that changes is refreshed by `visit.every(1.0, refresh)`: it pauses while the page is hidden, and an API
   that does not answer is reported in the frame, not by a traceback.

What a page is made of is in `parts/`: `panel`, `stat`, `chip`, `empty`, `code_block`, `rows_table` with `pager`,
`chart` and the fields of forms. Colours, sizes and type are tokens in `assets/theme.css`; a page has no colours of its
own. Every list is one page of the API's, never everything: there may be ten million events.

NiceGUI is started by the first visitor, so a server without visitors does not pay for it.
"""
