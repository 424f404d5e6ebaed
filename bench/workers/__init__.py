"""Programs that the scenarios run as processes of their own.

They find the server in libpq's environment variables, which every driver knows.
"""
