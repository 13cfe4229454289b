//! `/packages`: sizes of VMs under a name.

use http::Method;
use muster_shared::api::package::Package;

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::Route;
use super::schema;
use crate::store::Held;

pub(super) fn routes() -> Vec<Route> {
    const ALL: &str = "/packages";
    const ONE: &str = "/packages/:package";
    vec![
        Route::new(Method::GET, ALL, "PackageList", list)
            .summary("Packages, ordered by name")
            .returns_schema(schema::array_of::<Package>),
        Route::new(Method::POST, ALL, "PackageCreate", create)
            .summary("Creates a package")
            .payload(schema::package_create)
            .versioned()
            .errors(&[409])
            .returns_schema(schema::of::<Package>),
        Route::new(Method::GET, ONE, "PackageGet", get)
            .summary("A package, by name or uuid")
            .versioned()
            .returns_schema(schema::of::<Package>),
        Route::new(Method::POST, ONE, "PackageUpdate", update)
            .summary(
                "Changes a package, null takes a member away; VMs made from it stay as they are",
            )
            .payload(schema::package_update)
            .versioned()
            .returns_schema(schema::of::<Package>),
        Route::new(Method::DELETE, ONE, "PackageDelete", delete)
            .summary("Deletes a package; existing VMs keep their sizes")
            .versioned()
            .no_content(),
    ]
}

fn answer(held: Held<Package>) -> Result<Response, ApiError> {
    Ok(Response::json(held.value)?.etag(held.revision))
}

fn named(request: &Request) -> String {
    request.text("package").unwrap_or_default().to_owned()
}

async fn list(request: Request) -> Result<Response, ApiError> {
    Response::list(request.app.packages.list().await?)
}

async fn create(request: Request) -> Result<Response, ApiError> {
    answer(request.app.packages.create(&request.params).await?)
}

async fn get(request: Request) -> Result<Response, ApiError> {
    answer(request.app.packages.get(&named(&request)).await?)
}

async fn update(mut request: Request) -> Result<Response, ApiError> {
    let (named, expected) = (named(&request), request.expected());
    request.params.remove("package");
    answer(request.app.packages.change(&named, &request.params, &expected).await?)
}

async fn delete(request: Request) -> Result<Response, ApiError> {
    request.app.packages.delete(&named(&request), &request.expected()).await?;
    Ok(Response::empty())
}
