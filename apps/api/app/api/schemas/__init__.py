"""What comes in, validated strictly, and what goes out, described: a file a noun, by the names of the routes. What a
route has for itself alone stands with it.

Bodies take no coercion ("5" is no number) and no unknown field, so that a typo is refused and not ignored. Classes that
describe answers are for the OpenAPI document; a test holds real answers to them.
"""
