"""What a caller may do, before and after its credentials are checked.

* `protocol.py`: limits of connections and of the head of a request.
* `credentials.py`: tokens, users, and their roles.
* `auth.py`: the check of credentials, and of web pages of other sites.
"""
