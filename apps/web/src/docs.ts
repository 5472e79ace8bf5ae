// The page at /docs: Swagger UI, served by the service itself, so that it works without the internet.
import SwaggerUI from "swagger-ui-dist/swagger-ui-es-bundle.js";
import "swagger-ui-dist/swagger-ui.css";

SwaggerUI({ url: "openapi.json", dom_id: "#api", deepLinking: true, displayRequestDuration: true });
