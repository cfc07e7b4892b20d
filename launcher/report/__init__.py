"""`fedcore report`: what one run did, or several side by side, as one HTML file."""
